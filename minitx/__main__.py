"""The command line: ``python -m minitx check`` proves the ops, ``python -m minitx info`` says what runs here."""
import argparse
import sys


def main(arguments=None):
    """Run one command; return its exit status: 0 all right, 1 a check failed, 2 it could not run as asked."""
    parser = argparse.ArgumentParser(prog="python -m minitx", description="The Transformer in plain NumPy.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    check = commands.add_parser(
        "check", help="hold every op against finite differences, its twins and stored values; plant faults in it",
        description="Hold every op, forward and backward, against finite differences, its composed twin, stored "
        "values, PyTorch where it is installed and CuPy where a GPU is; then plant faults in the ops and see who finds "
        "them. Exit status 1 if anything fails, 2 if nothing could be checked.")
    check.add_argument("names", nargs="*", metavar="NAME|FILE.py",
                       help="ops to check (default: all), or a Python file: every Op that it defines, faults included")
    check.add_argument("--mutations", action="store_true",
                       help="list the classic faults, and the planted ones that change nothing, with the reasons")
    check.add_argument("--device", metavar="DEVICE", help="where the ops run: cpu, cuda or cuda:1 (default: what "
                       "MINITX_DEVICE says, else cpu)")
    check.add_argument("--json", metavar="FILE", help="write the results to FILE as well")
    commands.add_parser("info", help="versions, BLAS, threads, faster twins, CUDA and what it lacks, devices, optional "
                        "libraries")
    options = parser.parse_args(arguments)

    if options.command == "info":
        from minitx import info
        print(info.text())
        return 0
    if options.command == "check":
        from minitx.proof import report         # here, so that info stays quick
        try:
            return report.run(options.names, in_full=options.mutations, json_file=options.json, device=options.device)
        except (report.CannotCheck, OSError) as error:
            print(f"minitx check: {error}", file=sys.stderr)
            return 2
    parser.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
