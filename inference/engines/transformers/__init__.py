"""Engine `transformers`: torch and Hugging Face transformers in this process."""
