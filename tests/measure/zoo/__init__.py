"""`make zoo`: public models from packages, in the configuration that their class defaults to, under every tool."""
