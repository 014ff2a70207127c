"""How are responses sampled?"""
