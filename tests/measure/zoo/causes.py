"""Why something in the zoo is not right: looked into by hand, one sentence each. What passes again has to leave."""

SPEC_AUGMENT = (
    "SpecAugment draws its masks by NumPy in the forward; Dynamo has torch draw them, so aot_eager differs as much"
)

DRAWN_BY_NUMPY = (
    "its random blocks are drawn by NumPy in the forward; Dynamo has torch draw them, so aot_eager differs as much"
)

UNUSED_LAYER = (
    "a layer whose output nobody uses has gradients of zeros under AOTAutograd, and none in eager: aot_eager, too"
)
TOOLS = ("compare", "blame", "bfloat16", "float16")

CAUSES: dict[tuple[str, str], str] = {
    **{("BigBirdForMaskedLM", task): DRAWN_BY_NUMPY for task in ("train", *TOOLS)},
    **{(model, task): SPEC_AUGMENT for model in ("HubertForSequenceClassification", "Wav2Vec2ForCTC")
       for task in ("train", *TOOLS)},
    **{("LlavaForConditionalGeneration", task): UNUSED_LAYER for task in ("train", *TOOLS)},
}  # fmt: skip
"""{(model, task): why}."""
