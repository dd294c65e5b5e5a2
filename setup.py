"""The compiled parts. Optional: without a C compiler the package uses scipy and numpy."""

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


setup(
    ext_modules=[
        Extension(
            "oaxe.losses._solver",
            ["src/oaxe/losses/_solver.c"],
            py_limited_api=True,
            optional=True,
        ),
        Extension(
            "oaxe.engine._output",
            ["src/oaxe/engine/_output.c"],
            py_limited_api=True,
            optional=True,
        ),
    ],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
