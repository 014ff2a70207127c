"""What does it stand on?"""
