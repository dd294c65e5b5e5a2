"""The compiled parts. Optional: without a C compiler the package uses scipy and numpy."""

from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildExt(build_ext):
    def build_extension(self, ext: Extension) -> None:
        if self.compiler.compiler_type == "unix":
            ext.extra_compile_args = [
                "-O3",
                "-ffinite-math-only",
                "-fno-signed-zeros",
                "-fno-trapping-math",
            ]
        super().build_extension(ext)


PARTS = ("losses/_solver", "search/_ctc_beam", "search/_graph_beam", "engine/_output")

setup(
    ext_modules=[
        Extension(
            "oaxe." + part.replace("/", "."),
            [f"src/oaxe/{part}.c"],
            depends=glob("src/oaxe/*/*.h"),
            py_limited_api=True,
            optional=True,
        )
        for part in PARTS
    ],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
