"""The statements about a sweep: findings, the verdict, the next steps."""
