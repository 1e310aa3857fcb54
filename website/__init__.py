"""What the site needs besides its pages: hooks of mkdocs, pictures, a look at the result."""
