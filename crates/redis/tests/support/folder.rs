//! `Folder`: a temporary folder for servers, with a watchdog that removes both.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// A temporary folder. When it is dropped, or the process ends without dropping it (also by `kill -9`), every
/// server whose pid stands in a `.pid` file in it is killed, and the folder removed.
pub struct Folder {
    path: PathBuf,
    watchdog: Child,
}

/// Reads until the other end of its input is closed, which the operating system does when the test's process
/// has gone.
const WATCHDOG: &str = r#"
    trap '' INT HUP TERM
    cat >/dev/null
    for file in "$1"/*.pid; do
        [ -f "$file" ] && kill -9 "$(cat "$file")" 2>/dev/null
    done
    for try in 1 2 3 4 5 6 7 8 9 10; do
        rm -rf "$1" && break
        sleep 0.1
    done
"#;

impl Folder {
    pub fn new() -> Folder {
        let path = tempfile::Builder::new()
            .prefix("tickwheel-redis-")
            .tempdir()
            .expect("a temporary folder")
            .keep();
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        Folder { path, watchdog }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.watchdog.stdin.take() {
            let _ = stdin.flush();
        }
        let _ = self.watchdog.wait();
    }
}
