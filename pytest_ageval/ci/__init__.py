"""What a run says in the forms of GitHub Actions, GitLab and Jenkins."""
