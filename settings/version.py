"""The version of the service, which is that of the published package. Nothing of this project need be installed."""

VERSION = "0.4.0"
