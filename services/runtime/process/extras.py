"""The extra `embedded`: packages that only the analytics role needs, and processes that run its embedded store."""

EMBEDDED_PACKAGES = ("chdb", "pyarrow")


def missing_package(what: str, package: str) -> str:
    """Return the error of a process that needs a package of the extra and does not have it."""
    return (
        f"{what} needs the package {package}, which is not installed. Run: pip install 'carillon[embedded]',"
        " or in a checkout: make install, or with containers: the image carillon-embedded"
    )
