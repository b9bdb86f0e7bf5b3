//! `Process`: a child process that runs one function of the test program.

use std::{
    env,
    io::{self, BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdout, Command, Stdio, exit},
    thread,
};

use super::server::signal;

/// A process that runs a test marked `#[ignore]` of the same program, and is killed when dropped.
pub struct Process {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

/// What begins a line that is meant for the parent: the test harness writes lines too.
const MARK: &str = "> ";

impl Process {
    /// Runs `role`, with settings that it reads by [`setting`].
    pub fn start(role: &str, settings: &[(&str, &str)]) -> Process {
        Process::start_in(&[], role, settings)
    }

    /// Runs `role` in an environment that has these variables too.
    pub fn start_in(environment: &[(&str, &str)], role: &str, settings: &[(&str, &str)]) -> Process {
        let settings = settings
            .iter()
            .map(|(name, value)| (format!("ROLE_{name}"), value));
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", role, "--ignored", "--nocapture", "--test-threads", "1"])
            .envs(environment.iter().copied())
            .envs(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { child, output }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    /// The next line that the role has said; `None` when it has ended. Blocks.
    pub fn line(&mut self) -> Option<String> {
        for line in self.output.by_ref() {
            if let Some((_, said)) = line.ok()?.split_once(MARK) {
                return Some(said.to_owned());
            }
        }
        None
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A setting of the role that runs in this process; `None` where it was not started by [`Process::start`].
pub fn setting(name: &str) -> Option<String> {
    env::var(format!("ROLE_{name}")).ok()
}

/// Says a line to the parent. A role that has lost its parent ends.
pub fn say(line: &str) {
    let mut output = io::stdout().lock();
    let said = writeln!(output, "{MARK}{line}").and_then(|()| output.flush());
    if said.is_err() {
        exit(0);
    }
}

/// Ends this process when its parent has: nobody holds the other end of its input any more.
pub fn die_with_parent() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        exit(0);
    });
}

/// The library that gives a process another clock, for `LD_PRELOAD`.
pub fn faketime() -> String {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let library = libraries.find(|library| library.exists()).expect(
        "this test needs libfaketime, and /usr/lib/*/faketime/libfaketimeMT.so.1 is not there: install Debian's \
         libfaketime (`apt-get install libfaketime`)",
    );
    library.to_str().expect("a path in UTF-8").to_owned()
}
