"""Programs that show what the backend does: the main job, the bench, the GPU check."""
