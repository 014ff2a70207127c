"""What would a run need on accelerators that are not there?"""
