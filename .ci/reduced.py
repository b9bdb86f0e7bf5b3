"""Copies the crate and some of its tests into a workspace of its own, with only the dependencies that these use."""
import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What the tests of the API use that need no feature.
DEV_DEPENDENCIES = {"fastrand", "futures", "proptest", "tokio", "tokio-test", "tokio-util"}


def manifest(path, dev_dependencies):
    # Sections, each with its header.
    for section in re.split(r"(?m)^(?=\[)", path.read_text()):
        header, *lines = section.splitlines(keepends=True) or [""]
        if header.startswith(("[workspace", "[[")):
            continue
        if header.startswith("[dev-dependencies]"):
            lines = [line for line in lines if re.match(r"[\w-]*", line)[0] in dev_dependencies]
        yield header + "".join(lines) + "\n"
    # A workspace of its own: the copy lies within another.
    yield "[workspace]\n"


def ungated():
    """The modules of tests/api/ that need no feature."""
    lines = (ROOT / "tests/api/main.rs").read_text().splitlines()
    found = [re.fullmatch(r"mod (\w+);", line) for line in lines]
    gated = {number + 1 for number, line in enumerate(lines) if line.startswith("#[cfg")}
    return [module[1] for number, module in enumerate(found) if module and number not in gated and module[1] != "support"]


class Copy:
    """A copy under target/, with those tests of tests/api/ that need no feature."""

    def __init__(self, name):
        self.folder = ROOT / "target" / name
        for folder in ["src", "tests", "packages"]:
            shutil.rmtree(self.folder / folder, ignore_errors=True)
        shutil.copytree(ROOT / "src", self.folder / "src")
        shutil.copytree(ROOT / "tests/support", self.folder / "tests/support")
        shutil.copytree(ROOT / "tests/api", self.folder / "tests/api")
        modules = ['#[path = "../support/mod.rs"]\nmod support;', *(f"mod {test};" for test in ungated())]
        (self.folder / "tests/api/main.rs").write_text("\n".join(modules) + "\n")
        (self.folder / "Cargo.toml").write_text("".join(manifest(ROOT / "Cargo.toml", DEV_DEPENDENCIES)))

    def cargo(self, *arguments, folder=None, **environment):
        print("$ cargo", *arguments, flush=True)
        environment["CARGO_TARGET_DIR"] = str(self.folder / "target")
        subprocess.run(["cargo", *arguments], cwd=folder or self.folder, env=os.environ | environment, check=True)
