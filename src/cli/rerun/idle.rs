//! Rules that decide over nothing.

use std::collections::BTreeSet;

use super::arguments::Arguments;
use super::rules::text_of;
use super::target::Target;
use crate::cli::exit::Failure;
use crate::cli::nearest;
use crate::runtime;

/// Errors: a rule that was asked for decides over no node of any target; with the name that is most like its pattern.
pub(crate) fn refuse_idle(args: &Arguments, targets: &[Target]) -> Result<(), Failure> {
    let rules = &args.on;
    if rules.is_empty() {
        return Ok(());
    }
    let mut taken = vec![0; rules.len()];
    let mut known: BTreeSet<String> = BTreeSet::new();
    for target in targets {
        let (model, described) = (target.exported()?, target.described()?);
        let of_functions = model.functions.iter().flat_map(|function| &function.node);
        let nodes = model.graph.iter().flat_map(|graph| &graph.node).chain(of_functions);
        known.extend(nodes.flat_map(|node| [node.op_type().to_owned(), node.name().to_owned()]));
        let division = runtime::divide(model, rules, &described)?;
        taken.iter_mut().zip(division.taken).for_each(|(all, n)| *all += n);
        known.extend(described.into_values().flat_map(|told| [told.fx, told.op, told.module]));
    }
    let Some((rule, _)) = rules.iter().zip(&taken).find(|&(_, &n)| n == 0) else { return Ok(()) };
    let hint = meant(&rule.patterns[0], &known);
    Err(format!(
        "--on {}: no node of {} is its{hint}; a pattern (* and ?) is of an operator, a node's name, or name, operator or \
         module of an FX node, and of several rules the first that fits decides",
        text_of(rule),
        args.path.display()
    )
    .into())
}

/// The name that is most like a pattern; like one with a star at an end, the word of a name.
fn meant(pattern: &str, known: &BTreeSet<String>) -> String {
    let (word, whole) = (pattern.trim_matches('*'), known.iter().map(String::as_str).filter(|name| !name.is_empty()));
    match word == pattern {
        true => nearest::hint(pattern, whole),
        false => {
            nearest::hint(word, whole.flat_map(|name| name.split(['.', ':', '_'])).filter(|word| !word.is_empty()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_pattern_with_stars_a_word_is_meant() {
        let known =
            ["aten.native_layer_norm.default", "aten.mm.default", "LayerNormalization", ""].map(str::to_owned).into();
        assert_eq!(meant("*nrom*", &known), "; did you mean \"norm\"?");
        assert_eq!(meant("LayerNormalisation", &known), "; did you mean \"LayerNormalization\"?");
        assert_eq!(meant("*", &known), "");
    }
}
