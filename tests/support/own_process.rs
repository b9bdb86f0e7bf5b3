//! Tests that measure or limit the whole process, such as its memory.

use std::{any::type_name, env, process::Command};

const CHILD: &str = "TICKWHEEL_OWN_PROCESS";

/// Returns `true` in a process in which `test` runs alone. Elsewhere starts that process by a shell, after
/// `setup`, waits until the test has passed there, and returns `false`.
#[track_caller]
pub(crate) fn in_own_process<T: Fn()>(_test: T, setup: &str) -> bool {
    if env::var_os(CHILD).is_some() {
        return true;
    }
    let (_program, name) = type_name::<T>().split_once("::").unwrap();
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!(r#"{setup} exec "$0" --exact "$1" --test-threads 1"#))
        .arg(env::current_exe().unwrap())
        .arg(name)
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("1 passed"), "{name} did not run: {said}");
    false
}
