"""What does the network compute?"""
