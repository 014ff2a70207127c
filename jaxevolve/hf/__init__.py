"""How does it look at Hugging Face?"""
