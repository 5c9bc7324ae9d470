"""Why something in the zoo is not right: looked into by hand, one sentence each. What passes again has to leave."""

CAUSES: dict[tuple[str, str], str] = {}
"""{(model, task): why}."""
