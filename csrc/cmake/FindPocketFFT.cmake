# Finds the header-only FFT: a system copy of pocketfft_hdronly.h first, else the header
# that the pythran wheel (a build requirement) ships.
#
# Two cache variables, one per place: a single one would keep a stale answer when the
# build environment changes between two configurations.
find_path(POCKETFFT_SYSTEM_DIR pocketfft_hdronly.h PATH_SUFFIXES pocketfft gemmi/third_party)
if(NOT POCKETFFT_SYSTEM_DIR)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import importlib.util as u, pathlib as p; print(p.Path(u.find_spec('pythran').origin).parent / 'pythonic' / 'numpy' / 'fft')"
    OUTPUT_VARIABLE pythran_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  unset(POCKETFFT_PYTHRAN_DIR CACHE)
  find_path(POCKETFFT_PYTHRAN_DIR pocketfft.hpp PATHS "${pythran_dir}" NO_DEFAULT_PATH)
endif()

if(POCKETFFT_SYSTEM_DIR)
  set(pocketfft_dir "${POCKETFFT_SYSTEM_DIR}")
  set(pocketfft_header "pocketfft_hdronly.h")
elseif(POCKETFFT_PYTHRAN_DIR)
  set(pocketfft_dir "${POCKETFFT_PYTHRAN_DIR}")
  set(pocketfft_header "pocketfft.hpp")
else()
  message(FATAL_ERROR
    "pocketfft was not found. Install the Python package 'pythran' into the build environment "
    "(pip does so on its own when build isolation is on), or install a system package that has "
    "pocketfft_hdronly.h and point POCKETFFT_SYSTEM_DIR at its folder.")
endif()
message(STATUS "pocketfft: ${pocketfft_dir}/${pocketfft_header}")

if(NOT TARGET PocketFFT::PocketFFT)
  add_library(PocketFFT::PocketFFT INTERFACE IMPORTED)
  target_include_directories(PocketFFT::PocketFFT SYSTEM INTERFACE "${pocketfft_dir}")
  # Our own cache holds the plans, and our own loops hold the threads.
  target_compile_definitions(PocketFFT::PocketFFT INTERFACE
    HYENA_POCKETFFT_HEADER="${pocketfft_header}" POCKETFFT_NO_MULTITHREADING POCKETFFT_CACHE_SIZE=16)
endif()
