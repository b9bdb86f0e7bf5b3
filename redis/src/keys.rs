//! `Tag`: the names of keys.

use std::fmt::Write;

/// The common part of the keys of one lease or partition. They share a hash tag, and therefore a slot of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Tag {
    tag: String,
}

impl Tag {
    /// Creates `prefix:{name}`. Braces in either part are escaped, so that the only pair of braces is the hash tag's.
    pub(crate) fn new(prefix: &str, name: &str) -> Tag {
        let mut tag = String::with_capacity(prefix.len() + name.len() + 3);
        escape(&mut tag, prefix);
        tag.push_str(":{");
        escape(&mut tag, name);
        tag.push('}');
        Tag { tag }
    }

    /// Returns `prefix:{name}:what`.
    pub(crate) fn key(&self, what: &str) -> String {
        format!("{}:{what}", self.tag)
    }
}

fn escape(to: &mut String, text: &str) {
    for c in text.chars() {
        if matches!(c, '{' | '}' | '%') {
            let _ = write!(to, "%{:02X}", c as u32);
        } else {
            to.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_braces_are_the_tags() {
        let tag = Tag::new("app{1}", "a{b}c%7B");
        assert_eq!(tag.key("holder"), "app%7B1%7D:{a%7Bb%7Dc%257B}:holder");
    }

    #[test]
    fn names_do_not_run_into_prefixes() {
        assert_ne!(Tag::new("a:b", "c").key("x"), Tag::new("a", "b:c").key("x"));
        assert_ne!(Tag::new("a", "{").key("x"), Tag::new("a", "%7B").key("x"));
    }
}
