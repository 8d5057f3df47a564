"""What both generations of Huawei's Push Kit share, HMS (../hms) and HarmonyOS (../harmony).

batches.py: requests for up to 1,000 devices of a push     answers.py: what follows from a table of answers
"""
