"""Where do questions come from?"""
