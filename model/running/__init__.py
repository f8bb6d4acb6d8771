"""What happens between the work of an engine and its scores: dispatch, what is ahead, extending, and heads."""
