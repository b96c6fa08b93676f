// aetheris: the program that users run.
#include "cli/program.h"

int main(int argc, char** argv) { return ae::cli::run_program(argc, argv); }
