"""Programs that show what the backend does: the main job, Llama through two exporters, the bench, the GPU check."""
