"""What pyproject.toml cannot say: an extension that may be missing, and directories that move into the package.

Without a C compiler or Python's headers the extension is left out, and gateway/protocol/plain_transcoder.py does its
work.
"""

from __future__ import annotations

from setuptools import Extension, find_packages, setup

setup(
    # A checkout keeps sql/ and migrations/ at the top, a wheel inside the package; gateway/resources.py finds both.
    packages=[*find_packages(include=["gateway", "gateway.*"]), "gateway.sql", "gateway.migrations"],
    package_dir={"gateway.sql": "sql", "gateway.migrations": "migrations"},
    package_data={
        "gateway": ["py.typed"],
        "gateway.protocol": ["*.pyi"],
        "gateway.sql": ["**/*.sql", "README.md"],
        "gateway.migrations": ["**/*.py", "*.mako"],
    },
    exclude_package_data={"": ["*.pyx", "*.c"]},
    ext_modules=[Extension("gateway.protocol._transcoder", ["gateway/protocol/_transcoder.pyx"], optional=True)],
)
