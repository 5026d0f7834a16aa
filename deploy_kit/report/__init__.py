"""Reports: receipts and a campaign's state as one HTML file that needs nothing else, and as Markdown."""

from deploy_kit.report.build import build
from deploy_kit.report.content import Content
from deploy_kit.report.markdown import markdown
from deploy_kit.report.page import page

__all__ = ["Content", "build", "markdown", "page"]
