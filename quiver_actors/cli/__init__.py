"""The `quiver` command and all that an operator looks at: status documents, the page, the doctor, templates, the demo."""
