"""What `hyena-cpu bench` measures: a model's prompts and steps, and one layer of every mixer.

Times are of calls that have been made once before, each given as measured; summaries are medians.
"""
