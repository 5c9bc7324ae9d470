#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Builds that are refused by these words, one after the other, and then made.
    fn built(refusals: &[&str]) -> (Result<usize, String>, usize) {
        let left = RefCell::new(refusals.iter());
        let build = |missing: Option<&MissingKernels>| {
            assert!(missing.is_some());
            match left.borrow_mut().next() {
                Some(&reason) => Err(RuntimeError::BadModel { reason: reason.to_owned() }),
                None => Ok(refusals.len()),
            }
        };
        let made = again(MissingKernels::of_cuda("1.99.0"), build).map_err(|error| error.to_string());
        (made, left.borrow().len())
    }

    #[test]
    fn a_session_is_made_again_as_long_as_its_refusals_tell_something_new() {
        let [pad, log] = ["Provider type for Pad node", "Could not find an implementation for Log(13) node"];
        assert_eq!(built(&[]), (Ok(0), 0));
        assert_eq!(built(&[pad, log]), (Ok(2), 0));
        let (made, left) = built(&[pad, pad, log]);
        assert!(made.unwrap_err().contains(pad) && left == 1);
        let (made, left) = built(&["out of memory", pad]);
        assert!(made.unwrap_err().contains("out of memory") && left == 1);
    }
}
