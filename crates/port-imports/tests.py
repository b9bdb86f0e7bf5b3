#!/usr/bin/env python3
"""Tests of `port-imports` and `tokio-facade`: crates/port-imports/tests.py. The last ones need cargo, and Tokio in its registry."""
import os
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
TICKWHEEL = TOOLS.parents[1]
LIBRARY = '[package]\nname = "{}"\nedition = "2021"\n'


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, text):
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    def run_tool(self, tool, *arguments):
        ran = subprocess.run([TOOLS / tool, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertNotIn("Traceback", ran.stderr)
        return ran

    def port(self, before):
        """What becomes of a file, and what is reported of it as `by hand`."""
        file = self.write("ported.rs", before)
        ran = self.run_tool("port-imports", file)
        reported = [line.removeprefix(f"{file}:") for line in ran.stderr.splitlines()]
        self.assertEqual(ran.returncode, 3 if reported else 0, ran.stderr)
        return file.read_bytes().decode(), reported


class PortImports(InFolder):
    def test_paths_and_nested_imports_move(self):
        for before, after in [
            ("use tokio::time::{sleep, Duration};", "use tickwheel::time::{sleep, Duration};"),
            ("use tokio::{time, net};", "use tokio::net;\nuse tickwheel::time;"),
            ("#[cfg(test)]\npub use tokio::{net, time as t};", "#[cfg(test)]\npub use tokio::net;\n#[cfg(test)]\npub use tickwheel::time as t;"),
            ("/// use tokio::{\n///     net, time,\n/// };\n", "/// use tokio::net;\n/// use tickwheel::time;\n"),
            ("::tokio::time::sleep(d).await", "::tickwheel::time::sleep(d).await"),
            ('"tokio::time::sleep"', '"tickwheel::time::sleep"'),
            ("use tokio_util::time::{DelayQueue, delay_queue::Key};", "use tickwheel::{DelayQueue, delay_queue::Key};"),
        ]:
            self.assertEqual(self.port(before), (after, []))

    def test_both_imports_keep_the_attributes_whatever_stands_between(self):
        gone = "use tickwheel::time;"
        for between in ["\n", " // why\n", "\n\n", "\n// #[why]\n", "\n/// What.\n", " /* why */\n", "\r\n"]:
            before = f"#[cfg(a)]{between}#[cfg(any(\n    b,\n    c\n))]{between}use tokio::{{net, time}};\n"
            again = "#[cfg(a)]\n#[cfg(any(\n    b,\n    c\n))]\n"
            after = f"#[cfg(a)]{between}#[cfg(any(\n    b,\n    c\n))]{between}use tokio::net;\n{again}{gone}\n"
            self.assertEqual(self.port(before), (after, []))
        # Of the attributes of a documented item, its examples have none.
        for between in ["", "/// ```\n"]:
            before = f"#[derive(A)]\n{between}/// use tokio::{{net, time}};\nstruct B;"
            after = f"#[derive(A)]\n{between}/// use tokio::net;\n/// {gone}\nstruct B;"
            self.assertEqual(self.port(before), (after, []))
        self.assertEqual(self.port("#![a]\n\nuse tokio::{net, time};"), (f"#![a]\n\nuse tokio::net;\n{gone}", []))
        self.assertEqual(self.port("#[a]\nmod b;\nuse tokio::{net, time};"), (f"#[a]\nmod b;\nuse tokio::net;\n{gone}", []))

    def test_imports_in_long_comments_take_no_time(self):
        prose = "//! Words, without an end: `use a::b`, and more of them\n" * 60
        for use in ["use a::{b,", "use {a, b,", "use tokio::{a,"]:
            text = f"//! {use}\n{prose}"
            self.assertEqual(self.port(text), (text, []))

    def test_what_names_only_tokios_own_types_stays(self):
        for text in [
            "use tokio::time::Instant;",
            "use tokio::{net, time::{Duration, Instant as Now}};",
            "fn f() { use tokio::time::{Duration, Instant}; tokio::time::Instant::now() }",
            "fn f(at: tokio::time::Instant) -> tokio::time::Duration;",
        ]:
            self.assertEqual(self.port(text), (text, []))
        self.assertEqual(
            self.port("tokio::time::sleep_until(tokio::time::Instant::now())")[0],
            "tickwheel::time::sleep_until(tokio::time::Instant::now())",
        )

    def test_line_ends_stay(self):
        before = "// é\r\nuse tokio::{net,\r\n    time::sleep};\r\n\r\nfn f() {}\nfn g() {}\r\n"
        after = "// é\r\nuse tokio::net;\r\nuse tickwheel::time::sleep;\r\n\r\nfn f() {}\nfn g() {}\r\n"
        self.assertEqual(self.port(before), (after, []))

    def test_what_only_a_reader_can_move_is_reported(self):
        for text in [
            "use tokio as t;",
            "use tokio::{self as t};",
            "use tokio::*;",
            "extern crate tokio as t;",
            "use tokio::{net, // soon\n    time};",
            "use tokio::{net, /* why */ time::sleep};",
            "use {std::fmt, tokio::{net, time}};",
            "use a::{b, tokio::time};",
            "use crate::c::{self, d::{tokio::time::sleep, e}};",
            "use a::{b, tokio_util::time::DelayQueue};",
            "use tokio_util::time::FutureExt;",
            "use tokio_util::time::*;",
            "$crate::tokio::time::sleep(d)",
            "IntervalStream::new(ours)",
            "stream.timeout_repeating(ours)",
        ]:
            after, reported = self.port("\n" + text)
            self.assertEqual(after, "\n" + text)
            self.assertEqual(len(reported), 1, text)
            self.assertIn("2: by hand: ", reported[0])
        for text in ["/// We use tokio for this\nfn f() { let x = 1; }", "use tokio::time::Instant;", "use tokio;", "use {tokio::net, std::time};"]:
            self.assertEqual(self.port(text), (text, []))

    def test_lines_are_those_of_the_file_as_it_is_left(self):
        file = self.write("a.rs", "use tokio::{\n    net,\n    time,\n};\nuse tokio as t;\n")
        checked = self.run_tool("port-imports", "--check", file)
        self.assertIn("a.rs:5: by hand", checked.stderr)
        self.assertIn("a.rs:3: by hand", self.run_tool("port-imports", file).stderr)

    def test_check_changes_nothing_and_says_whether_there_is_something_to_change(self):
        text = "use tokio::time::sleep;"
        file = self.write("src/a.rs", text)
        self.assertEqual(self.run_tool("port-imports", "--check", "src").returncode, 1)
        self.assertEqual(file.read_text(), text)
        self.assertEqual(self.run_tool("port-imports", "src", "tests").returncode, 0)
        self.assertEqual(self.run_tool("port-imports", "--check", "src").returncode, 0)

    def test_a_check_tells_what_is_left_by_hand_from_what_it_would_change(self):
        self.write("src/a.rs", "use tokio as t;")
        self.assertEqual(self.run_tool("port-imports", "--check", "src").returncode, 3)
        self.write("src/b.rs", "use tokio::time::sleep;")
        self.assertEqual(self.run_tool("port-imports", "--check", "src").returncode, 1)

    def test_dependencies_that_no_source_names_any_more_are_named(self):
        self.write("Cargo.toml", LIBRARY.format("a") + '[dependencies]\ntokio = "1"\ntokio-util = "0.7"\n')
        self.write("src/lib.rs", "use tokio_util::time::DelayQueue;\nuse tokio::{net, time};")
        ran = self.run_tool("port-imports", ".")
        self.assertEqual(ran.returncode, 0)
        self.assertEqual(ran.stderr, f"{self.folder.resolve()}/Cargo.toml: no source names tokio-util any more\n")

    def test_nothing_is_written_unless_everything_can_be_read(self):
        text = "use tokio::time::sleep;"
        good = self.write("src/a.rs", text)
        (self.folder / "src/dangling.rs").symlink_to("nowhere")
        latin = self.write("src/latin.rs", b"// \xe9")
        for options in [], ["--check"]:
            ran = self.run_tool("port-imports", *options, "src")
            self.assertEqual(ran.returncode, 2)
            self.assertIn("src/dangling.rs: ", ran.stderr)
            self.assertIn("src/latin.rs: is not UTF-8", ran.stderr)
            self.assertEqual(good.read_text(), text)
            self.assertEqual(latin.read_bytes(), b"// \xe9")

    def test_a_folder_may_be_named_like_a_file(self):
        inside = self.write("src/x.rs/inside.rs", "use tokio::time::sleep;")
        self.assertEqual(self.run_tool("port-imports", "src").returncode, 0)
        self.assertEqual(inside.read_text(), "use tickwheel::time::sleep;")

    def test_what_cargo_built_and_hidden_folders_are_left_out(self):
        self.write("target/CACHEDIR.TAG", "")
        for name in ["target/a.rs", ".git/a.rs"]:
            self.write(name, "use tokio::time::sleep;")
        self.assertEqual(self.run_tool("port-imports", "--check", ".").returncode, 0)

    def test_members_of_a_workspace_get_the_dependency_where_code_needs_it(self):
        self.write("Cargo.toml", '[workspace]\nresolver = "2"\nmembers = ["*"]\n')
        for member, sources in {
            "timers": {"src/lib.rs": "use tokio::time::sleep;", "tests/t.rs": "tokio::time::advance(d);"},
            "tested": {"src/lib.rs": "", "tests/t.rs": "use tokio::time::sleep; // on resume\nfn f() { bytes.advance(1) }"},
            "both": {"src/lib.rs": "use tokio::time::sleep;", "tests/t.rs": "use tokio::time::sleep;"},
            "instants": {"src/lib.rs": "use tokio::time::Instant; // unlike tokio::time::sleep"},
        }.items():
            self.write(f"{member}/Cargo.toml", LIBRARY.format(member))
            for name, text in sources.items():
                self.write(f"{member}/{name}", text)
        ran = self.run_tool("port-imports", "--add", ".")
        self.assertEqual(ran.returncode, 0, ran.stderr)

        def added(member):
            manifest = tomllib.loads((self.folder / member / "Cargo.toml").read_text())
            for table in ("dependencies", "dev-dependencies"):
                if dependency := manifest.get(table, {}).get("tickwheel"):
                    self.assertTrue((self.folder / member / dependency["path"]).samefile(TICKWHEEL))
                    yield table, dependency.get("features", [])

        self.assertEqual(list(added("timers")), [("dependencies", []), ("dev-dependencies", ["test-util"])])
        self.assertEqual(list(added("tested")), [("dev-dependencies", [])])
        self.assertEqual(list(added("both")), [("dependencies", [])])
        self.assertEqual(list(added("instants")), [])


class TokioFacade(InFolder):
    def test_it_is_newer_than_what_was_built_from_another_checkout(self):
        self.write("Cargo.toml", LIBRARY.format("a") + '[dependencies]\ntokio = { version = "1", features = ["time"] }\n')
        self.write("src/lib.rs", "")
        before = self.write("before", "").stat().st_mtime
        ran = self.run_tool("tokio-facade", "install")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        copied = list((self.folder / ".tokio-facade/tickwheel").rglob("*.rs"))
        self.assertTrue(copied)
        self.assertGreaterEqual(min(file.stat().st_mtime for file in copied), before)

    def test_remove_leaves_what_was_there(self):
        self.write("Cargo.toml", LIBRARY.format("a") + '[dependencies]\ntokio = { version = "1", features = ["time"] }\n')
        manifest, lock = self.folder / "Cargo.toml", self.folder / "Cargo.lock"
        manifest.write_bytes(manifest.read_bytes().replace(b"\n", b"\r\n"))
        self.write("src/lib.rs", "")
        subprocess.run(["cargo", "generate-lockfile", "--quiet"], cwd=self.folder, check=True)
        before = manifest.read_bytes(), lock.read_bytes()
        for lock_is_lost in [False, True]:
            for command in ["install", "remove"]:
                ran = self.run_tool("tokio-facade", command)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                if command == "install" and lock_is_lost:
                    lock.unlink()
            self.assertEqual((manifest.read_bytes(), lock.read_bytes()), before)

    def test_an_install_that_fails_changes_nothing(self):
        own = f'tickwheel = {{ path = "{TICKWHEEL}" }}\n'
        manifest = self.write("Cargo.toml", LIBRARY.format("a") + f'[dependencies]\n{own}tokio = {{ version = "1", features = ["time"] }}\n')
        self.write("src/lib.rs", "")
        before = manifest.read_bytes()
        self.assertNotEqual(self.run_tool("tokio-facade", "install").returncode, 0)
        self.assertEqual(manifest.read_bytes(), before)
        self.assertFalse((self.folder / ".tokio-facade").exists())

    def test_a_folder_without_a_manifest_is_named(self):
        ran = self.run_tool("tokio-facade", "install")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("has no Cargo.toml", ran.stderr)


if __name__ == "__main__":
    os.environ.pop("CARGO_TARGET_DIR", None)
    unittest.main()
