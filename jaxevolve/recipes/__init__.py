"""Which system is this?"""
