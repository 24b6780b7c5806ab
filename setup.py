"""Installs delphi_traj. Every fact about the package stands in settings.ini."""

from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
parser = ConfigParser(delimiters=["="])
parser.read(here / "settings.ini", encoding="utf8")
facts = parser["DEFAULT"]


def words(key):
    "The value of `key` split at white space: one requirement, one word."
    return facts.get(key, "").split()


survival = words("survival_requirements")
setup(
    name=facts["lib_name"],
    version=facts["version"],
    description=facts["description"],
    long_description=(here / "README.md").read_text(encoding="utf8"),
    long_description_content_type="text/markdown",
    author=facts["author"],
    license="Apache-2.0",
    keywords=facts["keywords"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Framework :: Jupyter",
        "Intended Audience :: Science/Research",
        "Natural Language :: English",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        *[f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)],
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Medical Science Apps.",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["delphi_traj", "delphi_traj.*"]),
    package_data={"delphi_traj": ["py.typed", "*.pyi", "*/*.pyi"]},
    python_requires=">=" + facts["min_python"],
    install_requires=words("requirements"),
    extras_require={"survival": survival, "dev": words("dev_requirements") + survival},
    entry_points={
        "console_scripts": [line for line in facts["console_scripts"].split() if line],
        "nbdev": [f"{facts['lib_name']}={facts['lib_path']}._modidx:d"],
    },
    zip_safe=False,
)
