"""What pyproject.toml cannot say: extensions that may be missing, and directories that move into the package.

Without a C compiler or Python's headers the extensions are left out, and Python does their work.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, find_packages, setup

setup(
    # A checkout keeps sql/ and migrations/ at the top, a wheel inside the package; gateway/resources.py finds both.
    packages=[*find_packages(include=["gateway", "gateway.*"]), "gateway.sql", "gateway.migrations"],
    package_dir={"gateway.sql": "sql", "gateway.migrations": "migrations"},
    package_data={
        "gateway": ["py.typed"],
        "gateway.protocol": ["*.pyi"],
        "gateway.broker": ["*.pyi"],
        "gateway.server": ["*.pyi"],
        "gateway.sql": ["**/*.sql", "README.md"],
        "gateway.migrations": ["**/*.py", "*.mako"],
    },
    exclude_package_data={"": ["*.pyx", "*.pxd", "*.c"]},
    ext_modules=[
        Extension(
            str(source.with_suffix("")).replace("/", "."),
            [str(source)],
            depends=[str(declared) for declared in sorted(Path("gateway").glob("*/*.pxd"))],
            optional=True,
        )
        for source in sorted(Path("gateway").glob("*/*.pyx"))
    ],
)
