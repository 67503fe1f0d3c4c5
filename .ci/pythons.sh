# Functions for scripts that run on each version of Python. Source this file from bash.

#: The versions that Penstock supports.
SUPPORTED_PYTHONS="3.11 3.12 3.13 3.14"
MISSING_PYTHONS=()

# Print the version of a Python, such as 3.12. Print nothing if it does not run.
python_version() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Return whether python$1 is installed. If it is not, remember it for report_missing_pythons.
have_python() {
  # A command may exist and not run, such as pyenv's for a version that is not selected.
  [ "$(python_version "python$1")" = "$1" ] && return
  MISSING_PYTHONS+=("$1")
  return 1
}

# Print a warning that cannot be overlooked if a supported Python is not installed.
report_missing_pythons() {
  [ ${#MISSING_PYTHONS[@]} -eq 0 ] && return
  local minor
  echo "################################################################################" >&2
  for minor in "${MISSING_PYTHONS[@]}"; do
    echo "### $1 NOT TESTED on Python $minor: there is no python$minor that runs" >&2
  done
  echo "################################################################################" >&2
}

# The commands of pyenv run only the versions that are selected: select all.
if [ -z "${PYENV_VERSION:-}" ] && command -v pyenv >/dev/null; then
  PYENV_VERSION=$(pyenv versions --bare | grep -E '^3\.1[1-9]\.[0-9]+$' | paste -sd: -)
  export PYENV_VERSION
fi
