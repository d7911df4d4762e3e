"""How to get names and lines for code that has none."""

from memleak_android.host.console import printable
from memleak_android.host.profile.generated_code import is_generated
from memleak_android.host.profile.runtime_sites import module_name
from memleak_android.host.reports.text import messages

# Modules below these come with the system, and so do their symbols.
_OF_IMAGE = ("/system/", "/apex/", "/vendor/")  # Android's
SYSTEM_FOLDERS = (
    *("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/bin/", "/usr/sbin/", "/bin/", "/sbin/", "["),
    *_OF_IMAGE,
)
_OF_PACKAGES = ("/site-packages/", "/dist-packages/", "/node_modules/")


def way_out(module: str, build_id: str) -> str:
    """The option that would name the code of a module."""
    if is_generated(module):
        return messages.GENERATED_CODE
    if any(folder in module for folder in _OF_PACKAGES):
        return messages.PACKAGE_MODULE
    if not build_id:
        return messages.NO_BUILD_ID
    if module.startswith(_OF_IMAGE):
        return messages.IMAGE_MODULE
    if module.startswith(SYSTEM_FOLDERS):
        return messages.SYSTEM_MODULE
    return messages.OWN_MODULE.format(printable(module_name(module)))
