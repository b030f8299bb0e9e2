"""What can be said of a sweep: the sentences, the verdict, the next steps."""
