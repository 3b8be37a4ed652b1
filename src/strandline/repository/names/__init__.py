"""Names of repositories, branches and tags, and the settings that are kept beside them."""
