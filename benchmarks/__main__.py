"""Benchmarks, each with one command."""

from benchmarks.commands import bench
from oaxe.commands.app import run

if __name__ == "__main__":
    run(bench)
