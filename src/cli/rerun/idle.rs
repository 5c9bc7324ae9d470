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
    let hint = nearest::hint(&rule.patterns[0], known.iter().map(String::as_str).filter(|name| !name.is_empty()));
    Err(format!(
        "--on {}: no node of {} is its{hint}; a pattern (* and ?) is of an operator, a node's name, or name, operator or \
         module of an FX node, and of several rules the first that fits decides",
        text_of(rule),
        args.path.display()
    )
    .into())
}
