"""Programs that show what the backend does: the main job, Llama through two exporters, every node of Llama, the
GPU check."""
