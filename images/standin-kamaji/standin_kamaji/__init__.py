# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for Kamaji 26.8.2-edge: TenantControlPlane and DataStore, realised by kubeadm's phases."""
