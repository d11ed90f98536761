# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for Konnectivity: the API server dials into a tenant through an OpenSSH connection that agents open."""
