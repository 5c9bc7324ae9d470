//! The module of a node, as its metadata tells: of torch's exporter, and of models whose modules are local functions.

use crate::onnx::proto::{NodeProto, StringStringEntryProto};

/// Paths of the modules that a node is in, the outermost first, and of each its class (or nothing). Both are lists as
/// Python prints them; the last of each is of the node itself.
const SCOPES: &str = "pkg.torch.onnx.name_scopes";
const CLASSES: &str = "pkg.torch.onnx.class_hierarchy";
/// Path of the module that a node calls the function of.
const CALLED: &str = "rust_ort.module";

/// The modules that a node is in with their classes, the outermost first; None where it does not tell.
pub(super) fn scopes(node: &NodeProto) -> Option<Vec<(String, String)>> {
    let value = |key: &str| node.metadata_props.iter().find(|entry| entry.key() == key);
    if let Some(called) = value(CALLED) {
        return Some(vec![(called.value().to_owned(), node.op_type().to_owned())]);
    }
    let mut paths = list(value(SCOPES)?.value())?;
    paths.pop()?;
    let classes = value(CLASSES).map(StringStringEntryProto::value).and_then(list).unwrap_or_default();
    let class = |at: usize| classes.get(at).and_then(|class| class.rsplit('.').next()).unwrap_or_default().to_owned();
    Some(paths.into_iter().enumerate().map(|(at, path)| (path, class(at))).collect())
}

/// The texts of a Python list of texts.
fn list(printed: &str) -> Option<Vec<String>> {
    let mut rest = printed.trim().strip_prefix('[')?.strip_suffix(']')?.trim().chars().peekable();
    let mut texts = Vec::new();
    while let Some(quote) = rest.next() {
        if !matches!(quote, '\'' | '"') {
            return None;
        }
        let mut text = String::new();
        loop {
            match rest.next()? {
                '\\' => text.push(rest.next()?),
                c if c == quote => break,
                c => text.push(c),
            }
        }
        texts.push(text);
        while rest.next_if(|&c| c == ',' || c == ' ').is_some() {}
    }
    Some(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(entries: &[(&str, &str)]) -> NodeProto {
        let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
            key: Some(key.to_owned()),
            value: Some(value.to_owned()),
        };
        NodeProto {
            op_type: Some("Block".into()),
            metadata_props: entries.iter().map(entry).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn scopes_are_of_torch_or_our_own() {
        let pairs = |told: &[(&str, &str)]| {
            Some(told.iter().map(|&(path, class)| (path.to_owned(), class.to_owned())).collect::<Vec<_>>())
        };
        let paths = (SCOPES, "['', 'layers.0', \"layers.0.it's\", 'neg']");
        let classes = (CLASSES, "['a.Model', 'a.b.Layer', 'c.It', 'aten.neg.default']");
        let told = pairs(&[("", "Model"), ("layers.0", "Layer"), ("layers.0.it's", "It")]);
        assert_eq!(scopes(&node(&[paths, classes])), told);
        assert_eq!(scopes(&node(&[(SCOPES, "['a', 'neg']")])), pairs(&[("a", "")]));
        assert_eq!(scopes(&node(&[(CALLED, "layers.1")])), pairs(&[("layers.1", "Block")]));
        for damaged in ["", "[", "]", "[]", "['a", "['a\\", "[a, b]", "('a', 'b')"] {
            assert_eq!(scopes(&node(&[(SCOPES, damaged)])), None, "{damaged}");
        }
        assert_eq!(scopes(&node(&[])), None);
    }
}
