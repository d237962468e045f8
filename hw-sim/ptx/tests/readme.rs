//! The list of instructions in hw-sim/README.md is the decoder's.

#[path = "../../readme_section.rs"]
mod readme_section;

#[test]
fn the_list_of_instructions_is_the_decoders() {
    let mut table = String::from("| instruction | forms |\n|---|---|\n");
    for opcode in hwsim_ptx::supported() {
        assert!(!opcode.forms.contains('|'), "`|` ends a cell: {}", opcode.name);
        table += &format!("| `{}` | {} |\n", opcode.name, opcode.forms);
    }
    readme_section::check("PTX instructions", &table);
}
