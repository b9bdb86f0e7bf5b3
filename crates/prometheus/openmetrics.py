#!/usr/bin/env python3
"""Has a scrape of tickwheel-prometheus read by other readers of its format, and fails if one of them refuses it.

They are the OpenMetrics parser of PyPI's prometheus_client, which is installed under target/, and promtool, which is in Debian's package
prometheus: its OpenMetrics parser, and its linter for the same metrics in Prometheus' own format.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "openmetrics"

if pathlib.Path(sys.prefix) != VENV:
    if not (VENV / "bin/pip").exists():
        venv.create(VENV, with_pip=True)
    subprocess.run([VENV / "bin/pip", "install", "--quiet", "prometheus_client==0.26.0"], check=True)
    sys.exit(subprocess.run([VENV / "bin/python", __file__, *sys.argv[1:]]).returncode)

from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families


class Parsed:
    """What a registry of prometheus_client collects."""

    def __init__(self, families):
        self.families = families

    def collect(self):
        return self.families


scrape = subprocess.run(
    ["cargo", "run", "--quiet", "--package", "tickwheel-prometheus", "--example", "scrape"],
    cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
).stdout

families = list(text_string_to_metric_families(scrape))
wheel = [family for family in families if family.name.startswith("tickwheel_")]
assert len(wheel) == 18, [family.name for family in wheel]
undescribed = [family.name for family in families if not family.documentation or family.type == "unknown" or not family.samples]
assert not undescribed, f"no description, type or sample: {undescribed}"

with tempfile.TemporaryDirectory() as folder:
    # promtool imports samples, which must have a time.
    lines = [line if line.startswith("#") else f"{line} 1700000000" for line in scrape.splitlines()]
    text = pathlib.Path(folder, "scrape.txt")
    text.write_text("\n".join(lines) + "\n")
    subprocess.run(["promtool", "tsdb", "create-blocks-from", "openmetrics", text, folder], check=True, stdout=subprocess.DEVNULL)
subprocess.run(["promtool", "check", "metrics"], input=generate_latest(Parsed(families)), check=True)
print(f"{len(families)} families are read by prometheus_client and promtool")
