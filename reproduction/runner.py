"""The runner of the synthetic task and of translation: missing jobs are done, reports written."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from oaxe.support.devices import usable_device
from oaxe.support.errors import UserError, listed
from oaxe.support.files import make_folder
from oaxe.support.tables import markdown
from reproduction.jobs import INTERRUPTED, Job, run_jobs, what_is_missing
from reproduction.report import Report, write_report

ON_CPU = {"tiny", "laptop"}  # presets; the others want a GPU


def run_all(
    jobs: Sequence[Job],
    write: Callable[[], None],
    *,
    out: Path,
    preset: str,
    per_device: int,
    train: bool,
    console: Console,
) -> None:
    """Do the jobs in processes, and write the reports of all that is there then.

    Args:
        train: False to name the jobs only.
    """
    make_folder(out)
    if jobs and not train:
        more = f" and {len(jobs) - 10} more" if len(jobs) > 10 else ""
        names = ", ".join(job.name for job in jobs[:10])
        console.print(f"not there, and made if --no-train is left out: {names}{more}")
        jobs = []
    if jobs:
        logs = " ".join(dict.fromkeys(str(job.log.parent) for job in jobs))
        console.print(f"{len(jobs)} to do; logs in {logs}")
        if preset not in ON_CPU and usable_device(None) == "cpu":
            console.print(f"preset {preset} is made for a GPU: without one it may take days")
    failed = run_jobs(jobs, per_device, console)
    if INTERRUPTED in failed.values():
        raise what_is_missing(failed)
    try:
        write()
    except OSError as error:
        raise UserError(
            f"a file could not be read or written: {error}; make room in {out}, and run the same "
            "command again"
        ) from error
    if failed:
        raise what_is_missing(failed)


def refuse_other_settings(differences: Mapping[Path, Sequence[str]], out: Path) -> None:
    """Results of other settings must not stand beside those of these: by path, what differs."""
    problems = [f"{path}: {', '.join(found)}" for path, found in differences.items() if found]
    if problems:
        raise UserError(
            f"there are results of other settings:{listed(problems)}\nChoose another --out; or "
            f"remove them in {out}, their runs, and what was made from them"
        )


def publish(name: str, report: Report, out: Path, console: Console) -> None:
    """Write a report, and print its notes and tables."""
    write_report(name, report, out)
    for note in report.notes:
        console.print(note)
    for table in report.tables:
        console.print(markdown(table), soft_wrap=True)
    console.print(f"page: {out / f'{name}.html'}")
