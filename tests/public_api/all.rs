//! Compares the public API with docs/public-api.txt, or writes that file if `UPDATE_SNAPSHOTS=yes`.

use std::path::Path;

/// What follows from a type's fields, and is worth a line: `Send`, `Sync` and `Unpin` among them. What every
/// type has is not.
#[test]
fn the_public_api_is_what_the_file_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let api = public_api::Builder::from_rustdoc_json(root.join("target/doc/tickwheel.json"))
        .omit_blanket_impls(true)
        .build()
        .expect("a JSON of the rustdoc that .ci/toolchain names");
    api.assert_eq_or_update(root.join("docs/public-api.txt"));
}
