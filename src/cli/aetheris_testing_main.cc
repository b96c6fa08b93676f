// aetheris_testing: aetheris with the native functions of tests and benchmarks.
#include "app/toolbox.h"
#include "cli/program.h"
#include "testing/native_functions.h"

int main(int argc, char** argv) {
  ae::app::set_native_functions(ae::testing::native_functions());
  return ae::cli::run_program(argc, argv);
}
